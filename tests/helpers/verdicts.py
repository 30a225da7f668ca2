r"""Verdicts on answers, by kind: what a person who knows the rules of `microrl guide rewards` says of each pair.

One row a line: + or -, the gold answer, the answer, why. + means right. Judged by reading the mathematics, before it was run.
"""

TABLE = {
    "kinds that an attack brought up": r"""
+ ;; x>0, x\neq 1 ;; (0,1)\cup(1,\infty) ;; conditions, or an expression
+ ;; (0,1)\cup(1,\infty) ;; x>0, x\neq 1 ;; conditions, or an expression
+ ;; \{x\mid x>0, x\ne 1\} ;; (0,1)\cup(1,\infty) ;; conditions, or an expression
+ ;; x\ge 2 \text{ and } x\neq 5 ;; [2,5)\cup(5,\infty) ;; conditions, or an expression
+ ;; [2,5)\cup(5,\infty) ;; x\ge 2, x\ne 5 ;; conditions, or an expression
+ ;; x>0,x\ne1 ;; x\ne 1, x>0 ;; conditions, or an expression
+ ;; \mathbb{R}\setminus\{-1,1\} ;; x\ne -1, x\ne 1 ;; a set without another
+ ;; \mathbb{R}\setminus\{-1,1\} ;; x\ne \pm 1 ;; a set without another
+ ;; \mathbb{R}\setminus\{-1,1\} ;; x\ne -1, 1 ;; a set without another
+ ;; x>0, x\neq 1 ;; 0<x<1 \text{ or } x>1 ;; conditions, or an expression
+ ;; (1,4) ;; x>1, x<4 ;; conditions, or an expression
+ ;; x>0, x\neq 1 ;; (0,\infty)\setminus\{1\} ;; a set without another
- ;; x>0, x\neq 1 ;; (0,\infty) ;; conditions, or an expression
- ;; x>0, x\neq 1 ;; [0,1)\cup(1,\infty) ;; conditions, or an expression
- ;; x>0, x\neq 1 ;; (0,1)\cup(2,\infty) ;; conditions, or an expression
- ;; (0,1)\cup(1,\infty) ;; x>0, y\ne 1 ;; conditions, or an expression
- ;; (0,1)\cup(1,\infty) ;; x>0 \text{ or } x\ne 1 ;; conditions, or an expression
- ;; \mathbb{R}\setminus\{-1,1\} ;; x\ne 1 ;; a set without another
- ;; (1,4) ;; x>4, x<1 ;; conditions, or an expression
+ ;; \mathbb R\setminus(-3,5) ;; (-\infty,-3]\cup[5,\infty) ;; a set without another
+ ;; (-\infty,-3]\cup[5,\infty) ;; \mathbb{R}\setminus(-3,5) ;; a set without another
+ ;; (-\infty,-3]\cup[5,\infty) ;; \mathbb{R} - (-3,5) ;; the same or not
+ ;; (-\infty,-3)\cup(5,\infty) ;; \mathbb R\backslash[-3,5] ;; the same or not
+ ;; x\le -3 \text{ or } x\ge 5 ;; \mathbb R\setminus(-3,5) ;; a set without another
+ ;; (-\infty,-3]\cup(5,\infty) ;; \mathbb R\setminus(-3,5] ;; a set without another
+ ;; [0,1]\cup[2,3] ;; [0,3]\setminus(1,2) ;; a set without another
+ ;; \mathbb{R}-\{0\} ;; x\ne 0 ;; conditions, or an expression
- ;; \mathbb R\setminus(-3,5) ;; (-\infty,-3)\cup(5,\infty) ;; a set without another
- ;; \mathbb R\setminus[-3,5] ;; (-\infty,-3]\cup[5,\infty) ;; a set without another
- ;; \mathbb R\setminus(-3,5) ;; (-3,5) ;; a set without another
- ;; (-3,5) ;; \mathbb R\setminus(-3,5) ;; a set without another
- ;; \mathbb R\setminus(-3,5) ;; \mathbb R\setminus\{-3,5\} ;; a set without another
- ;; \mathbb R\setminus(-3,5) ;; \mathbb R\setminus(-3,6) ;; a set without another
+ ;; 12\frac12\% ;; 12.5\% ;; a mixed number of hundredths
+ ;; 12.5\% ;; 12\frac{1}{2}\% ;; the same or not
+ ;; 12.5 ;; 12\frac12\% ;; a mixed number of hundredths
+ ;; \frac18 ;; 12\frac12\% ;; a mixed number of hundredths
+ ;; 33\frac13\% ;; \frac13 ;; the same or not
+ ;; 22\frac12^\circ ;; 22.5 ;; the same or not
+ ;; 22.5^\circ ;; 22\frac{1}{2}^{\circ} ;; the same or not
+ ;; 12\frac12\% ;; 12 1/2 % ;; a mixed number of hundredths
- ;; 12\frac12\% ;; 6\% ;; a mixed number of hundredths
- ;; 12\frac12\% ;; 12.05\% ;; a mixed number of hundredths
- ;; 12\frac12\% ;; 1.25 ;; a mixed number of hundredths
- ;; \frac18 ;; 13\frac12\% ;; a mixed number of hundredths
+ ;; 0.75 ;; 75\text{ cents} ;; a hundredth of a dollar
+ ;; 0.75 ;; 75 cents ;; a hundredth of a dollar
+ ;; 0.75 ;; 75¢ ;; a hundredth of a dollar
+ ;; 75 ;; 75\text{ cents} ;; a hundredth of a dollar
+ ;; 1.20 ;; 120\text{ cents} ;; a hundredth of a dollar
+ ;; \$0.75 ;; 75\text{ cents} ;; a hundredth of a dollar
+ ;; 75\text{ cents} ;; \$0.75 ;; a hundredth of a dollar
+ ;; 0.05 ;; 5\text{ cents} ;; a hundredth of a dollar
- ;; 0.75 ;; 7.5\text{ cents} ;; a hundredth of a dollar
- ;; 0.75 ;; 75\text{ cm} ;; conditions, or an expression
- ;; 0.75 ;; 75 ;; the same or not
- ;; 75\text{ cents} ;; 0.75 ;; a hundredth of a dollar
- ;; 0.75 ;; 75\text{ euros} ;; conditions, or an expression
+ ;; \frac{5\pi}{6} ;; 150^\circ ;; radians and degrees
+ ;; \frac{5\pi}{6} ;; 150\text{ degrees} ;; radians and degrees
+ ;; \pi ;; 180^\circ ;; radians and degrees
+ ;; \frac{\pi}{2}\text{ radians} ;; 90^{\circ} ;; radians and degrees
+ ;; \frac54\pi ;; 225° ;; radians and degrees
+ ;; -\frac{\pi}{4} ;; -45^\circ ;; radians and degrees
- ;; \frac{5\pi}{6} ;; 150 ;; radians and degrees
- ;; \frac{5\pi}{6} ;; 120^\circ ;; radians and degrees
- ;; \frac{5\pi}{6} ;; -150^\circ ;; radians and degrees
- ;; 150 ;; \frac{5\pi}{6} ;; radians and degrees
- ;; 2 ;; 2\pi^\circ ;; radians and degrees
- ;; \frac56 ;; 150^\circ ;; the same or not
+ ;; 2:3 ;; 2\text{ to }3 ;; a ratio in words
+ ;; 2:3 ;; 2 to 3 ;; a ratio in words
+ ;; \frac23 ;; 2\text{ to }3 ;; a ratio in words
+ ;; 2\text{ to }3 ;; 2:3 ;; a ratio in words
+ ;; 2\text{ to }3 ;; 4:6 ;; a ratio in words
+ ;; 12\text{ to }30 ;; 2:5 ;; a ratio in words
+ ;; 1:2:3 ;; 1\text{ to }2\text{ to }3 ;; a ratio in words
- ;; 2:3 ;; 3\text{ to }2 ;; a ratio in words
- ;; 2 ;; 2\text{ to }3 ;; a ratio in words
- ;; 3 ;; 2\text{ to }3 ;; a ratio in words
- ;; 23 ;; 2\text{ to }3 ;; a ratio in words
- ;; [2,3] ;; 2\text{ to }4 ;; a ratio in words
- ;; 3 ;; x \to 3 ;; conditions, or an expression
+ ;; \text{ellipse} ;; \text{an ellipse} ;; articles say nothing
+ ;; \text{an ellipse} ;; ellipse ;; articles say nothing
+ ;; \text{The circle} ;; \text{circle} ;; conditions, or an expression
+ ;; parabola ;; a parabola ;; the same or not
+ ;; \text{a line and a circle} ;; line and circle ;; conditions, or an expression
+ ;; \text{the empty set} ;; \text{empty set} ;; conditions, or an expression
- ;; \text{ellipse} ;; \text{a circle} ;; articles say nothing
- ;; \text{ellipse} ;; \text{not an ellipse} ;; articles say nothing
- ;; \text{A} ;; \text{an ellipse} ;; articles say nothing
- ;; A and B ;; B ;; the same or not
- ;; \text{ellipse} ;; \text{a} ;; articles say nothing
- ;; \text{ellipse} ;; \text{an ellipse or a circle} ;; articles say nothing
+ ;; 1 ;; \sin^2x+\cos^2x ;; an identity, or none
+ ;; 1 ;; \sec^2\theta-\tan^2\theta ;; the same or not
+ ;; 2 ;; 2\sin^2(3t)+2\cos^2(3t) ;; an identity, or none
+ ;; 1 ;; e^xe^{-x} ;; conditions, or an expression
+ ;; 1 ;; \cosh^2 x-\sinh^2 x ;; an identity, or none
+ ;; 0 ;; \sin 2x-2\sin x\cos x ;; an identity, or none
+ ;; -1 ;; -\cos^2 y-\sin^2 y ;; an identity, or none
- ;; 1 ;; \sin^2x+\cos^2y ;; an identity, or none
- ;; 1 ;; \sin^2 x-\cos^2 x ;; an identity, or none
- ;; 2 ;; \sin^2x+\cos^2x ;; an identity, or none
- ;; 1 ;; \frac{\sin x}{\sin x} ;; an identity, or none
- ;; 1 ;; \sin x ;; an identity, or none
- ;; 1 ;; \frac{|x|}{|x|} ;; conditions, or an expression
- ;; 1 ;; \lfloor \cos^2 x \rfloor + 1 ;; conditions, or an expression
- ;; 42 ;; 42+x-x ;; conditions, or an expression
- ;; \sin^2x+\cos^2x ;; 2 ;; an identity, or none
+ ;; 17 ;; \approx 17 ;; an approximation says its number
+ ;; 17 ;; ≈ 17 ;; the same or not
+ ;; \approx 17 ;; 17 ;; an approximation says its number
+ ;; 17 ;; = 17 ;; the same or not
+ ;; 3.14 ;; \approx 3.14 ;; an approximation says its number
+ ;; 17\text{ cm} ;; \approx 17\text{ cm} ;; an approximation says its number
+ ;; \$17 ;; \approx \$17 ;; an approximation says its number
- ;; 17 ;; \approx 16.8 ;; an approximation says its number
- ;; 17 ;; \approx 18 ;; an approximation says its number
- ;; \frac13 ;; \approx 0.3 ;; an approximation says its number
- ;; 17 ;; 17\approx ;; an approximation says its number
- ;; 17 ;; \not\approx 17 ;; an approximation says its number
- ;; 17 ;; \ne 17 ;; the same or not
- ;; 17 ;; < 17 ;; the same or not
+ ;; \text{A7}_{16} ;; A7_{16} ;; digits of a base above ten
+ ;; \text{A7}_{16} ;; \mathrm{A7}_{16} ;; digits of a base above ten
+ ;; \text{A7}_{16} ;; (A7)_{16} ;; digits of a base above ten
+ ;; A7_{16} ;; \text{A7}_{16} ;; digits of a base above ten
+ ;; A7_{16} ;; A7_{\text{sixteen}} ;; digits of a base above ten
+ ;; 2F_{16} ;; \text{2F}_{16} ;; digits of a base above ten
+ ;; \text{FACE}_{16} ;; FACE_{16} ;; digits of a base above ten
+ ;; (1011)_2 ;; 1011_2 ;; the same or not
+ ;; \text{1011}_2 ;; 1011_{2} ;; conditions, or an expression
- ;; \text{A7}_{16} ;; 7A_{16} ;; digits of a base above ten
- ;; \text{A7}_{16} ;; A8_{16} ;; digits of a base above ten
- ;; \text{A7}_{16} ;; A7_{12} ;; digits of a base above ten
- ;; \text{A7}_{16} ;; 167 ;; digits of a base above ten
- ;; \text{A7}_{16} ;; A7 ;; digits of a base above ten
- ;; \text{A7}_{16} ;; A_{16} ;; digits of a base above ten
+ ;; 120 ;; C(10,3) ;; binomial coefficient in brackets
+ ;; 120 ;; C(10, 3) ;; binomial coefficient in brackets
+ ;; C(10,3) ;; 120 ;; binomial coefficient in brackets
+ ;; \binom{10}{3} ;; C(10,3) ;; binomial coefficient in brackets
+ ;; 240 ;; 2\cdot C(10,3) ;; binomial coefficient in brackets
+ ;; 120 ;; C(10,7) ;; binomial coefficient in brackets
+ ;; 45 ;; C(5,2)+C(7,3) ;; binomial coefficient in brackets
- ;; 120 ;; C(10,4) ;; binomial coefficient in brackets
- ;; 120 ;; C(3,10) ;; binomial coefficient in brackets
- ;; 720 ;; C(10,3) ;; binomial coefficient in brackets
- ;; (10,3) ;; C(10,3) ;; binomial coefficient in brackets
- ;; 30 ;; C(10,3) ;; binomial coefficient in brackets
- ;; 10 ;; C(10,3) ;; binomial coefficient in brackets
+ ;; \$12.50 ;; US$ 12.50 ;; money of one country
+ ;; 12.50 ;; US$ 12.50 ;; money of one country
+ ;; 12.5 ;; US\$12.50 ;; money of one country
+ ;; 12.50 ;; US$12.50 ;; money of one country
+ ;; \$12.50 ;; \text{US\$}12.50 ;; money of one country
+ ;; \$12.50 ;; 12.50\text{ US dollars} ;; money of one country
+ ;; \$12.50 ;; U.S. $12.50 ;; the same or not
+ ;; US$ 12.50 ;; 12.50 ;; money of one country
- ;; €12.50 ;; US$ 12.50 ;; money of one country
- ;; \$12.50 ;; US$ 12.05 ;; money of one country
- ;; 12.50 ;; US 12.50 ;; money of one country
- ;; \$12.50 ;; AUS$ 12.50 ;; money of one country
- ;; \$12.50 ;; US$ 12.50, US$ 13 ;; money of one country
- ;; 17 ;; 17:1 ;; a ratio
- ;; 17 ;; 34:2 ;; a ratio
- ;; 17 ;; 17\text{ to }1 ;; a ratio in words
- ;; 1 ;; 1:1 ;; a ratio
- ;; 2 ;; 4:2 ;; a ratio
- ;; 17 ;; 1:17 ;; a ratio
- ;; 17.0 ;; 17:1 ;; a ratio
+ ;; \frac{17}{2} ;; 17:2 ;; a ratio
+ ;; 3:4 ;; \frac34 ;; a ratio
+ ;; 17:1 ;; 34:2 ;; a ratio
+ ;; 17:1 ;; 17 ;; a ratio
+ ;; 0.75 ;; 3:4 ;; a ratio
- ;; x^2+1 ;; \frac{x(x^2+1)}{x} ;; a gap is no value
- ;; x^2+1 ;; \frac{x^3+x}{x} ;; a gap is no value
- ;; x^2+1 ;; x^2+\frac{x}{x} ;; a gap is no value
- ;; x^2+1 ;; x^2+x^0 ;; a gap is no value
- ;; x^2+1 ;; x^3\cdot x^{-1}+1 ;; a gap is no value
- ;; x^2+1 ;; \frac{\sin x (x^2+1)}{\sin x} ;; an identity, or none
- ;; x^2+1 ;; e^{\ln(x^2)}+1 ;; a gap is no value
- ;; x^2+1 ;; \frac{(x^2+1)(x-7)}{x-7} ;; a gap is no value
- ;; x^2+1 ;; \frac{(x^2+1)(x^2-2)}{x^2-2} ;; a gap is no value
- ;; x^2+1 ;; x^2+1+0^{x^2} ;; a gap is no value
- ;; x^2+1 ;; \frac{1}{\frac{1}{x^2+1}}\cdot\frac{x}{x} ;; a gap is no value
- ;; x+y ;; \frac{x^2-y^2}{x-y} ;; conditions, or an expression
- ;; x+1 ;; \frac{x^2-1}{x-1} ;; conditions, or an expression
+ ;; x^2+1 ;; \frac{(x^2+1)^2}{x^2+1} ;; a gap is no value
- ;; x^2+1 ;; \frac{x^4-1}{x^2-1}\cdot\frac{2}{2} + 0 ;; a gap is no value
+ ;; x^2+1 ;; (x+1)^2-2x ;; a gap is no value
+ ;; x^2+1 ;; |x|^2+1 ;; a gap is no value
+ ;; \frac{ab}{a+b} ;; \frac{1}{\frac1a+\frac1b} ;; the same or not
+ ;; \frac{1}{x+1} ;; \frac{2}{2x+2} ;; conditions, or an expression
+ ;; \sin x ;; \frac{1}{\csc x} ;; an identity, or none
+ ;; x^2+1 ;; \frac{2x^2+2}{2} ;; a gap is no value
+ ;; \sqrt{x}+1 ;; x^{1/2}+1 ;; conditions, or an expression
""",
    "what pairs written before the code was read brought up": r"""
- ;; x ;; X ;; two letters
- ;; r ;; R ;; two letters
+ ;; R ;; $R$ ;; the letter
- ;; x^2+1 ;; (x^2+1)\frac{\cos x}{\cos x} ;; a gap at a zero of the cosine
- ;; x^2+1 ;; \frac{(x^2+1)(e^x-2)}{e^x-2} ;; a gap at ln 2
- ;; x^2+1 ;; \frac{(x^2+1)(x^7-3)}{x^7-3} ;; a gap at a root of high degree
- ;; x ;; \frac{x(\pi x-1)}{\pi x-1} ;; a gap at 1/pi
- ;; 17 ;; 17 + \lfloor \frac{x^2+1}{1000} \rfloor ;; another value where x is large
- ;; \sin x ;; \sin x + \lfloor \frac{x^2+1}{1000} \rfloor ;; another value where x is large
- ;; x ;; |x+100|-100 ;; another value below -100
- ;; x ;; \sqrt{(x+100)^2}-100 ;; another value below -100
- ;; x ;; |x+10^{50}|-10^{50} ;; another value far below
- ;; x+y ;; |x+y+100|-100 ;; another value below -100
- ;; x ;; x + \arcsin(\sin(x/100)) - x/100 ;; another value above 158
- ;; 17 ;; 17 + \arctan(\tan(x/100)) - x/100 ;; another value above 158
- ;; |x| ;; ||x|-10^{-9}|+10^{-9} ;; another value near 0
- ;; y=x ;; (y-x)(|y-x+100|+y-x+100) = 0 ;; all that lies 100 below it, too
- ;; \frac{1}{x} ;; \frac{1}{x}+0^x ;; no value below 0
- ;; 17 ;; 17 tens ;; ten times
- ;; 17 ;; 17 halves ;; a half
- ;; 17 ;; 17 lakh ;; a hundred thousand times
- ;; 17 ;; 17... ;; it goes on
- ;; 1,2,3 ;; 1,2,3,... ;; it goes on
- ;; \{x\in\mathbb{Z} \mid x>2\} ;; (2,\infty) ;; whole numbers only
- ;; (2,\infty) ;; \{x\in\mathbb{Z} \mid x>2\} ;; whole numbers only
- ;; \{x\in\mathbb{Z} \mid x>2\} ;; \{x \in \mathbb{N} : x > 2\} ;; another domain
- ;; \{x\in\mathbb{Z} \mid x>2\} ;; \{x : x > 2\} ;; any number
+ ;; \{x\in\mathbb{Z} \mid x>2\} ;; \{x \in \mathbb{Z} : x > 2\} ;; the same set
- ;; \pm 1 \pm \sqrt{2} ;; \pm(1+\sqrt2) ;; two of four
+ ;; \pm 1 \pm \sqrt{2} ;; 1+\sqrt2,1-\sqrt2,-1+\sqrt2,-1-\sqrt2 ;; each sign is free
+ ;; \pm\sqrt{3\pm\sqrt2} ;; \sqrt{3+\sqrt2},-\sqrt{3+\sqrt2},\sqrt{3-\sqrt2},-\sqrt{3-\sqrt2} ;; each sign is free
- ;; \pm\sqrt{3\pm\sqrt2} ;; \sqrt{3+\sqrt2},-\sqrt{3-\sqrt2} ;; two of four
+ ;; 1\mp\sqrt2 ;; 1\pm\sqrt2 ;; the same two
+ ;; 17 ;; seventeen ;; the number as a word
- ;; 17 ;; seventy ;; another word
- ;; 17 ;; sixteen ;; another number
+ ;; \text{A, B, D} ;; A, B, D ;; choices
+ ;; A, B, D ;; \text{A, B, D} ;; choices
+ ;; \text{A, B, D} ;; D, A, B ;; choices in any order
- ;; \text{A, B, D} ;; A, B ;; one is missing
- ;; \text{A, B, D} ;; A, B, C ;; another choice
+ ;; A7_{16} ;; a7_{16} ;; small digits
+ ;; 2A_{12} ;; 2a_{12} ;; small digits
+ ;; FF_{16} ;; ff_{16} ;; small digits
+ ;; \text{FACE}_{16} ;; face_{16} ;; small digits
- ;; FF_{16} ;; fe_{16} ;; another number
- ;; 2A_{12} ;; 2a_{16} ;; another base
- ;; 2a_{12} ;; 2A_{12} ;; a product of 2 and a letter
+ ;; 1234567 ;; 1.234.567 ;; points between groups
- ;; 1.234 ;; 1.234.567 ;; another number
- ;; 1234 ;; 1.234 ;; one point is a decimal point
+ ;; \frac{n(n+1)}{2} ;; \binom{n+1}{2} ;; the triangular number
- ;; \frac{n(n+1)}{2} ;; \binom{n}{2} ;; the one before
+ ;; \binom{n}{k} ;; C(n,k) ;; binomial coefficient in brackets
+ ;; C(n,k) ;; \binom{n}{k} ;; binomial coefficient in brackets
+ ;; \binom{n}{k} ;; C(n, n-k) ;; what is not chosen
+ ;; \binom{n}{k} ;; {n \choose k} ;; the old spelling
+ ;; \binom{n}{k} ;; {}_nC_k ;; another old spelling
+ ;; \binom{n}{k} ;; {}^{n}C_{k} ;; another old spelling
+ ;; \binom{10}{3} ;; {}_{10}C_3 ;; another old spelling
+ ;; 120 ;; _{10}C_{3} ;; another old spelling
- ;; \binom{n}{k} ;; C(k,n) ;; exchanged
- ;; \binom{n}{k} ;; C(n,k+1) ;; another one
- ;; \binom{10}{3} ;; {}_{10}C_4 ;; 210
- ;; x^2C_3 ;; \binom{2}{3} ;; a product
+ ;; \binom{n}{k}+\binom{n}{k-1} ;; \binom{n+1}{k} ;; Pascal's rule
+ ;; \frac{n(n-1)}{2} ;; \frac{n!}{2!(n-2)!} ;; written out
+ ;; 17 ;; The answer is 17 ;; a name before the number
+ ;; \frac{3}{5} ;; \text{The probability is } \frac35. ;; a name before the number
- ;; 17 ;; The answer is not 17 ;; taken back
- ;; 17 ;; The answer is 17 or 18 ;; two answers
- ;; 17 ;; The answer is 18 ;; another number
- ;; 17 ;; 17 is wrong ;; taken back
+ ;; \sum_{k=1}^{n} k ;; \frac{n(n+1)}{2} ;; worked out
+ ;; \sum_{i=1}^{n} i^2 ;; \frac{n(n+1)(2n+1)}{6} ;; worked out
- ;; \sum_{k=1}^{n} k ;; \frac{n(n-1)}{2} ;; one term less
+ ;; \frac{\sqrt{3}}{3} \approx 0.577 ;; \frac{\sqrt{3}}{3} ;; the exact value
+ ;; x = \frac{1}{3} \approx 0.33 ;; \frac{1}{3} ;; the exact value
+ ;; x \approx 2.4 ;; 2.4 ;; all that is known
- ;; x \approx 2.4 ;; 2.5 ;; another number
- ;; \frac{\sqrt{3}}{3} \approx 0.577 ;; 0.578 ;; another number
+ ;; 10 ;; 10 \text{ hours per week} ;; a unit all of its own
+ ;; 10 \text{ hours per week} ;; 10 ;; the unit left out
- ;; 10 \text{ hours per week} ;; 10 \text{ hours} ;; another unit
+ ;; 98.6^\circ\text{F} ;; 98.6^\circ F ;; the scale as a letter
- ;; 98.6^\circ\text{F} ;; 98.6^\circ C ;; another scale
+ ;; \frac{dy}{dx} = 2x ;; 2x ;; the value of a derivative
- ;; 2x ;; \frac{dy}{dx} = 3x ;; another derivative
+ ;; 5 ;; \text{Answer: } 5 ;; a name and a colon
- ;; 5 ;; \text{Answer: } 6 ;; another number
- ;; 5 ;; \text{Answer: } 5 : 6 ;; a ratio
+ ;; 500,000,000 ;; 500 million ;; the number as a word
+ ;; \$2.5 \text{ million} ;; \$2{,}500{,}000 ;; the number as a word
- ;; \$2.5 \text{ million} ;; \$2.5 \text{ billion} ;; another number
- ;; 500 \text{ million} ;; 500 ;; a millionth
+ ;; \begin{bmatrix} 2 & 0 \\ 0 & 2 \end{bmatrix} ;; 2\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix} ;; a multiple
+ ;; \frac{1}{7}\begin{pmatrix} 3 \\ -1 \end{pmatrix} ;; \begin{pmatrix} \frac37 \\ -\frac17 \end{pmatrix} ;; a multiple
- ;; \begin{pmatrix} 3 \\ -1 \end{pmatrix} ;; 2\begin{pmatrix} 3 \\ -1 \end{pmatrix} ;; another multiple
- ;; \begin{pmatrix} 3 \\ 1 \end{pmatrix} ;; \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}\begin{pmatrix} 3 \\ 1 \end{pmatrix} ;; not multiplied out
- ;; \begin{pmatrix} 3 \\ 1 \end{pmatrix} ;; 1\begin{pmatrix} 3 \\ 1 \end{pmatrix}2 ;; something behind it
- ;; 3:30 ;; 0.1 ;; a time is no number
- ;; 3:30\text{ p.m.} ;; \frac{3}{30} ;; a time is no number
+ ;; 11 ;; \text{There are } 11 ;; a name before the number
- ;; 11 ;; \text{There are } 12 ;; another number
+ ;; \text{seven} ;; 7 ;; the number as a word
- ;; \text{seven} ;; 8 ;; another number
""",
    "spellings of data sets": r"""
+ ;; 12.5 ;; USD 12.50 ;; a currency's code stands where its sign does
+ ;; $12.50 ;; USD 12.50 ;; the code is the sign
+ ;; 12.50 ;; 12.50 USD ;; or behind the number
- ;; €12.50 ;; USD 12.50 ;; another currency
+ ;; €12.50 ;; EUR 12.50 ;; the same currency
- ;; 12.50 ;; USD 13.50 ;; another number
+ ;; 120 ;; {10 \choose 3} ;; an old spelling of the binomial
+ ;; \binom{10}{3} ;; {10 \choose 3} ;; the same binomial
- ;; 120 ;; {10 \choose 4} ;; 210
+ ;; 9:45 ;; 9{:}45 ;; braces for the spacing of the colon
- ;; 9:45 ;; 9{:}46 ;; another time
+ ;; f(x)=x+1 ;; y=x+1 ;; the same function
+ ;; y=x+1 ;; f(x)=x+1 ;; the same function
- ;; f(x)=x+1 ;; y=x+2 ;; another function
- ;; f(x)=x+1 ;; x=y+1 ;; the inverse
- ;; y=x^2 ;; f(y)=x^2 ;; another variable
- ;; f(x)=x+1 ;; z=x+1 ;; no usual name of its values
+ ;; 3/2 or 1.5 ;; 1.5 ;; two spellings of one value
+ ;; 3/2 or 1.5 ;; 3/2 ;; two spellings of one value
- ;; 3/2 or 2.5 ;; 3/2 ;; half of the answer
- ;; 3/2 and 1.5 ;; 5/2 ;; another value
- ;; 5 \text{ or } 5 \text{ m} ;; 5 km ;; one of the spellings has another unit
- ;; 5 \text{ m} \text{ or } 5 ;; 5 km ;; the same the other way round
- ;; 5 \text{ or } \$5 ;; €5 ;; another currency
- ;; 90 \text{ or } 90^\circ ;; 90\% ;; percent are no degrees
- ;; 5 ;; 5 \text{ m or } 5 \text{ km} ;; two lengths that contradict each other
- ;; 5 ;; \$5 or €5 ;; two sums that contradict each other
- ;; 7 ;; a = 7 or b = 7 ;; of two letters
+ ;; 1.5 ;; 3/2 or 1.5 ;; two spellings of one value
- ;; f(x)=y^2+x ;; y=y^2+x ;; an equation in y is no function of x
- ;; f(x) = y ;; y=y ;; says nothing
+ ;; 10 ;; 5 \choose 2 ;; the old spelling alone
+ ;; 10 ;; {5} \choose {2} ;; with braces round each
+ ;; 10 ;; {{5} \choose {2}} ;; and round both
- ;; 10 ;; {6} \choose {2} ;; 15
+ ;; 12 ;; 2+{5 \choose 2} ;; in a sum
""",
    "integers": r"""
+ ;; 120 ;; \frac{10!}{3!7!} ;; a product of factorials
+ ;; 5040 ;; 7\cdot 6! ;; the rule of the factorial
- ;; 5040 ;; 7!! ;; the double factorial is 105
- ;; 17 ;; \overline{17} ;; a repeating decimal, or a name
- ;; 17 ;; 17 mod 5 ;; another number
- ;; -3 ;; -3^2 ;; minus nine
- ;; 0 ;; 0! ;; one
- ;; 42 ;; 40-44 ;; a difference
- ;; 42 ;; 42(43) ;; a product
- ;; 42 ;; 42\ldots ;; it goes on
- ;; 42 ;; \cancel{43}42 ;; something struck out
- ;; 42 ;; 42+ ;; not finished
- ;; 42 ;; "42" ;; a string
- ;; 10 ;; 0xA ;; another notation
- ;; 10 ;; X ;; a letter
- ;; 1000 ;; 1k ;; a letter
- ;; 42 ;; 42\cdot x/x ;; a letter that need not be there
+ ;; 1 ;; \sin^2 x+\cos^2 x ;; Pythagoras, whatever x is
- ;; 1 ;; 1^{\infty} ;; undefined
- ;; 64 ;; 2^3^2 ;; may be 512
- ;; 6 ;; 3!! ;; the double factorial is 3
+ ;; 2^{1000} ;; 2^{1001}-2^{1000} ;; exact, however large
+ ;; 42 ;; 42 ;; the same numeral
+ ;; 42 ;; 042 ;; a leading zero changes nothing
+ ;; 42 ;; +42 ;; a plus sign changes nothing
+ ;; -7 ;; −7 ;; a minus sign of Unicode
+ ;; -7 ;; –7 ;; a dash used as a minus sign
+ ;; 42 ;; 42. ;; a full stop ends the sentence
+ ;; 42 ;; 42, ;; a comma at the end
+ ;; 42 ;; 42; ;; a semicolon at the end
+ ;; 42 ;; $42$ ;; math delimiters
+ ;; 42 ;; \(42\) ;; math delimiters
+ ;; 42 ;; \[ 42 \] ;; math delimiters
+ ;; 42 ;; \boxed{42} ;; a box in the box
+ ;; 42 ;; (42) ;; brackets around one number
+ ;; 42 ;; 42.0 ;; a decimal that is whole
+ ;; 42 ;; 6 \cdot 7 ;; the product is 42
+ ;; 42 ;; \frac{84}{2} ;; the quotient is 42
+ ;; 42 ;; |-42| ;; the absolute value is 42
+ ;; 120 ;; 5! ;; the factorial is 120
+ ;; 10 ;; \binom{5}{2} ;; five choose two is 10
+ ;; 3 ;; \lfloor 3.7 \rfloor ;; rounded down
+ ;; 25 ;; 5^{2} ;; the power is 25
+ ;; 42 ;; \text{42} ;; text style
+ ;; 42 ;; \textbf{42} ;; bold
+ ;; 42 ;; \mathbf{42} ;; bold
+ ;; 42 ;; \color{red}42 ;; colour
+ ;; 42 ;; \textcolor{blue}{42} ;; colour
+ ;; 42 ;; **42** ;; bold in Markdown
- ;; 42 ;; 43 ;; another number
- ;; 42 ;; -42 ;; the sign
- ;; 42 ;; 24 ;; digits turned round
- ;; 42 ;; 420 ;; one digit too many
- ;; 42 ;; 4 2 ;; two numbers
- ;; 42 ;; 4\text{2} ;; two numbers
- ;; 8 ;; 4{2} ;; printed as 42, and no product
- ;; 8 ;; \mathbf{4}\mathbf{2} ;; printed as 42
- ;; 2 ;; 1\boxed{2} ;; something before the box in the box
- ;; 42 ;; \boxed{1}\boxed{42} ;; two boxes
- ;; 42 ;; 42^2 ;; the square
- ;; 42 ;; \sqrt{42} ;; the root
- ;; 42 ;; 42! ;; the factorial
- ;; 42 ;; 42x ;; a multiple of x
- ;; 42 ;; x ;; any number at all
- ;; 42 ;; \phantom{1}42 ;; something that is not shown
- ;; 42 ;; --42 ;; not a numeral
- ;; 42 ;; ٤٢ ;; digits of another script are not read
- ;; 3 ;; ３ ;; a wide digit is not read
- ;; 42 ;; \text{} ;; nothing
- ;; 42 ;; {} ;; nothing
- ;; 42 ;; ? ;; no number
- ;; 42 ;; \sum_{n=1}^{3} 7n ;; a sum left standing is no number
""",
    "digit groups": r"""
+ ;; 10\,000 ;; 10000 ;; a thin space between groups
- ;; 10\,000 ;; 0 ;; not the last group alone
- ;; 10\,000 ;; 10 ;; not the first group alone
+ ;; 10000 ;; 10,000 ;; a comma between groups
+ ;; 10000 ;; 10{,}000 ;; a comma without space
+ ;; 10000 ;; 10~000 ;; a tie between groups
+ ;; 10000 ;; 10\ 000 ;; a space between groups
+ ;; 10000 ;; 10 000 ;; a plain space between groups
+ ;; 10000 ;; 10,\!000 ;; a comma without space
+ ;; 1234567 ;; 1,234,567 ;; two commas
+ ;; 1234567.5 ;; 1,234,567.5 ;; groups and a decimal
+ ;; 1,234 ;; 1234 ;; the gold answer may have groups
- ;; 1234 ;; 1,235 ;; another number
- ;; 1234 ;; 12,34 ;; groups have three digits: this is a list
- ;; 1234 ;; (1,234) ;; in brackets it is a pair
+ ;; (1, 234) ;; (1,234) ;; and a pair it is
- ;; 10,000 ;; 10, 000 ;; a list
- ;; 12 ;; 1,2 ;; a list
- ;; 10000 ;; 10.000 ;; a point is a decimal point
""",
    "decimals": r"""
+ ;; 0.5 ;; .5 ;; without the zero
+ ;; 0.5 ;; 0.50 ;; a zero at the end
+ ;; 0.5 ;; 1/2 ;; the same number
+ ;; 0.5 ;; \frac{1}{2} ;; the same number
+ ;; 1.25 ;; 5/4 ;; the same number
+ ;; -0.75 ;; -\frac34 ;; the same number
+ ;; \frac13 ;; 0.333333 ;; a third has no finite decimal; 10^-6 of it is tolerated
+ ;; \frac23 ;; 0.666667 ;; rounded
+ ;; \frac13 ;; 0.\overline{3} ;; the repeating decimal is a third
+ ;; 0.1\overline{6} ;; 1/6 ;; the repeating decimal is a sixth
- ;; 0.\overline{3} ;; 0.3 ;; not the same number
- ;; \frac13 ;; 0.333 ;; too coarse
- ;; \frac13 ;; 0.3333 ;; too coarse
- ;; 0.333 ;; 1/3 ;; the gold answer is a finite decimal
- ;; 0.1 ;; 0.1000001 ;; two finite decimals are equal or not
- ;; 0.1000001 ;; 0.1 ;; the other way round
- ;; 1 ;; 0.9999999 ;; a whole number has no tolerance
- ;; 1000000 ;; 1000000.1 ;; nor has a large one
- ;; 0.5 ;; 0.05 ;; a tenth of it
- ;; 3.14 ;; 3.1416 ;; another decimal
- ;; 0.25 ;; 25 ;; a hundred times
- ;; 0 ;; 0.0000001 ;; small is not nothing
- ;; 1,5 ;; 1.5 ;; a comma separates items
- ;; 5.0 ;; 5.0.0 ;; not a numeral
""",
    "scientific notation": r"""
+ ;; 1.6\times10^{-19} ;; 1.6e-19 ;; the same number
- ;; 1.6\times10^{-19} ;; 0.0 ;; small is not nothing
- ;; 1.6\times10^{-19} ;; 1.7\times10^{-19} ;; another number
- ;; 1.6\times10^{-19} ;; 1.6\times10^{-18} ;; another power
- ;; 1.6\times10^{-19} ;; 1.6 ;; without the power
+ ;; 1500 ;; 1.5e3 ;; the same number
+ ;; 1500 ;; 1.5E+3 ;; the same number
+ ;; 2.0\times10^8 ;; 200000000 ;; the same number
+ ;; 6.02\cdot 10^{23} ;; 6.02e23 ;; the same number
+ ;; 3 \times 10^8 ;; 3*10^8 ;; plain text
+ ;; 3 \times 10^8 ;; 300{,}000{,}000 ;; written out
- ;; 2.0\times10^8 ;; 2\times 10^9 ;; another power
- ;; 1e16 ;; e+16 ;; Euler's number
- ;; 0 ;; 1e-300 ;; small is not nothing
- ;; 0 ;; 10^{-300} ;; small is not nothing
""",
    "fractions and mixed numbers": r"""
+ ;; \frac12 ;; \dfrac{1}{2} ;; another size
+ ;; \frac12 ;; \tfrac12 ;; another size
+ ;; \frac{1}{2} ;; \frac12 ;; without braces
+ ;; \frac{1}{2} ;; 2/4 ;; not reduced
+ ;; \frac{1}{2} ;; ½ ;; a fraction of Unicode
+ ;; -\frac{1}{2} ;; \frac{-1}{2} ;; where the sign stands
+ ;; -\frac{1}{2} ;; \frac{1}{-2} ;; where the sign stands
+ ;; 2.5 ;; 2 1/2 ;; a mixed number
+ ;; \frac52 ;; 2\frac{1}{2} ;; a mixed number
+ ;; 2\frac12 ;; 2.5 ;; a mixed number
+ ;; -3\frac{1}{2} ;; -3.5 ;; the sign is of all of it
+ ;; 2.5 ;; 2½ ;; a mixed number
+ ;; \frac{9}{5} ;; 1\frac{4}{5} ;; a mixed number
+ ;; 1 ;; 2 \cdot \frac12 ;; a product
- ;; 1 ;; 2\frac12 ;; no product
- ;; 2\frac12 ;; \frac{2}{2} ;; a mixed number is no product
- ;; \frac12 ;; \frac21 ;; turned round
- ;; \frac{3}{7} ;; \frac{4}{7} ;; another number
- ;; \frac{3}{7} ;; 37 ;; digits alone
- ;; 12 ;; \frac12 ;; a fraction
- ;; \frac12 ;; 12 ;; digits alone
- ;; 2 ;; \frac{2}{0} ;; undefined
- ;; 0 ;; \frac{0}{0} ;; undefined
- ;; 42 ;; 42+0/0 ;; undefined
- ;; 1 ;; 0^0 ;; undefined
- ;; \infty ;; 1/0 ;; undefined
""",
    "roots and constants": r"""
+ ;; (3+2\sqrt2)^{50} ;; (1+\sqrt2)^{100} ;; the square of 1 + root 2 is 3 + 2 root 2
- ;; (3+2\sqrt2)^{50} ;; (1+\sqrt2)^{100}+(1-\sqrt2)^{100} ;; the last term is 10^-39
- ;; \sqrt{2^{1000}+1} ;; 2^{500} ;; near it
- ;; \frac{\ln(640320^3+744)}{\sqrt{163}} ;; \pi ;; the same to 30 digits, not equal
- ;; \sqrt{1000001}-\sqrt{1000000} ;; \frac{1}{2000} ;; near it
+ ;; \sqrt{10+2\sqrt{21}} ;; \sqrt3+\sqrt7 ;; its square is 10 + 2 root 21
- ;; \arctan 1 ;; 45^\circ ;; asked for in radians: the sign alone may be left out
+ ;; \sin^{-1}(1) ;; \frac{\pi}{2} ;; the inverse function
- ;; \sin^{-1}(1) ;; \frac{1}{\sin 1} ;; the inverse function
+ ;; |3+4i| ;; 5 ;; the absolute value
+ ;; 2\sqrt{2} ;; \sqrt{8} ;; the same number
+ ;; \sqrt{2} ;; √2 ;; a root of Unicode
+ ;; \sqrt{2} ;; \sqrt2 ;; without braces
+ ;; \sqrt{2} ;; sqrt(2) ;; plain text
+ ;; 2√3 ;; \sqrt{12} ;; the same number
+ ;; \sqrt2+\sqrt3 ;; \sqrt{5+2\sqrt6} ;; its square is 5 + 2 root 6
+ ;; \frac{1}{\sqrt2} ;; \frac{\sqrt2}{2} ;; made rational below
+ ;; \frac{1+\sqrt5}{2} ;; \frac{2}{\sqrt5-1} ;; times root 5 plus 1
+ ;; \sqrt[3]{8} ;; 2 ;; the cube root
+ ;; \sqrt[3]{-8} ;; -2 ;; a real odd root
+ ;; \sqrt{-4} ;; 2i ;; an imaginary number
+ ;; 4^{1/2} ;; 2 ;; a power of a half
+ ;; \sqrt2 ;; 1.41421356 ;; to more than six digits
+ ;; 3\pi ;; 9.42478 ;; within 10^-6
+ ;; 3\pi ;; 3π ;; pi of Unicode
+ ;; \frac{\pi}{2} ;; 0.5\pi ;; the same number
+ ;; \pi ;; pi ;; plain text
+ ;; \ln(2) ;; \log_e 2 ;; the natural logarithm
+ ;; 3 ;; \log_2 8 ;; two to the third is 8
+ ;; \frac{\log 8}{\log 2} ;; 3 ;; whatever the base
+ ;; \sin 30^\circ ;; 1/2 ;; degrees in the argument
+ ;; \cos\frac{\pi}{3} ;; \frac12 ;; an angle in radians
+ ;; \tan(\pi/4) ;; 1 ;; an angle in radians
+ ;; 0 ;; (\sqrt{2})^2-2 ;; nothing is left
+ ;; e^{i\pi} ;; -1 ;; Euler's formula
+ ;; 3+4i ;; 4i+3 ;; the order of a sum
- ;; 3+4i ;; 3-4i ;; the conjugate
- ;; i ;; -i ;; the conjugate
- ;; 2\sqrt{3} ;; 3\sqrt{2} ;; root 12 is not root 18
- ;; \sqrt2 ;; 1.414 ;; too coarse
- ;; \pi ;; \frac{22}{7} ;; near it
- ;; \pi ;; 3.14 ;; too coarse
- ;; 3.14 ;; \pi ;; the gold answer is a finite decimal
- ;; \pi ;; \pi+10^{-100} ;; nearer than any figure shown
- ;; \pi ;; \pi+e^{-1000} ;; nearer still
- ;; 1 ;; \tanh(100) ;; near one
- ;; \sin(10^{-10}) ;; 10^{-10} ;; near it
- ;; e^{-50} ;; e^{-60} ;; both small, not equal
- ;; e^{-50} ;; 0 ;; small is not nothing
- ;; \sin 30 ;; \frac12 ;; thirty radians
- ;; \ln 2 ;; \log 2 ;; a logarithm without a base has an unknown one
- ;; 2 ;; \log 100 ;; a logarithm without a base has an unknown one
- ;; \tan 90^\circ ;; \tan 270^\circ ;; both undefined
- ;; \sqrt{2}\sqrt{3} ;; \sqrt{5} ;; a product, not a sum
- ;; 10^{100} ;; 10^{100}+1 ;; exact, however large
- ;; 9^{9^{9}} ;; 9^{9^{9^9}} ;; too large to be compared
- ;; 1 ;; \infty ;; not a number
- ;; \infty ;; -\infty ;; the sign
+ ;; \infty ;; ∞ ;; a sign of Unicode
+ ;; \infty ;; +\infty ;; the sign may be written
- ;; \infty ;; \infty - \infty ;; undefined
- ;; \infty ;; \infty + 1 ;; no arithmetic with infinity
- ;; 0 ;; \mathrm{NaN} ;; not a number
""",
    "percent, money, degrees, units": r"""
- ;; 45^\circ ;; 45\text{ radians} ;; radians are no degrees
- ;; 45^\circ ;; 45\% ;; hundredths are no degrees
- ;; 45^\circ ;; 45\text{ cm} ;; a length is no angle
- ;; 5\text{ m} ;; 5\% ;; hundredths are no length
- ;; 5\text{ m} ;; 5^\circ ;; an angle is no length
- ;; 50\% ;; \$50 ;; money is no share
- ;; \$5 ;; 5\% ;; a share is no money
+ ;; 3\text{ m} ;; 3 m ;; one letter may be a unit where the gold answer has one
+ ;; 3\text{ m} ;; 300cm ;; the same length
+ ;; 2\text{ hours} ;; 2 h ;; the unit as one letter
- ;; 3\text{ m} ;; 3 g ;; a mass is no length
- ;; 3\text{ m} ;; 3x ;; a multiple of x
- ;; 3\text{ m} ;; 3\text{ m/s} ;; a speed is no length
+ ;; 72\text{ km/h} ;; 20\text{ m/s} ;; the same speed
- ;; 72\text{ km/h} ;; 72\text{ m/s} ;; another speed
+ ;; \$12.50 ;; 1250\text{ cents} ;; the same money
- ;; \$12.50 ;; 1250 ;; no dollars
+ ;; 50\% ;; 50% ;; the sign
+ ;; 50\% ;; 50 percent ;; the word
+ ;; 50\% ;; 50 ;; the sign left out
+ ;; 50 ;; 50\% ;; the question asked for a percentage
+ ;; 50\% ;; 0.5 ;; the value
+ ;; 0.5 ;; 50\% ;; the value
+ ;; 0.42 ;; 42\% ;; the value
- ;; 0.5 ;; 0.5\% ;; half a hundredth
- ;; 0.5\% ;; 0.5 ;; half a hundredth
- ;; 50\% ;; 5 ;; a tenth
- ;; 50 ;; 0.5 ;; a hundredth, and no sign
+ ;; \$5 ;; 5 ;; the sign left out
+ ;; 5 ;; \$5.00 ;; cents of nothing
+ ;; \$1,000 ;; 1000 ;; groups
+ ;; \$5 ;; 5 \text{ dollars} ;; the word
+ ;; \$0.50 ;; 50\text{ cents} ;; the same money
+ ;; 5 ;; 5€ ;; the gold answer names no money
- ;; \$5 ;; €5 ;; other money
- ;; \$5 ;; 5\text{ cents} ;; other money
+ ;; 90^\circ ;; 90 ;; the sign left out
+ ;; 90 ;; 90^{\circ} ;; the sign
+ ;; 90^\circ ;; 90 \text{ degrees} ;; the word
+ ;; 90^\circ ;; 90° ;; the sign of Unicode
- ;; 90^\circ ;; 100^\circ ;; another angle
- ;; 90^\circ ;; \frac{\pi}{2} ;; asked for in degrees: the sign alone may be left out
- ;; 42^\circ\text{F} ;; 42^\circ\text{C} ;; another scale
+ ;; 5\text{ cm} ;; 5 ;; the unit left out
+ ;; 5 ;; 5\text{ cm} ;; the gold answer has no unit
+ ;; 5\text{ cm} ;; 5 cm ;; plain text
+ ;; 5\text{ cm} ;; 5\mathrm{cm} ;; upright letters
+ ;; 5\text{ cm} ;; 5 centimeters ;; the word
- ;; 5\text{ cm} ;; 5\text{ m} ;; another length
- ;; 5 cm ;; 5 m ;; another length
+ ;; 5\text{ m} ;; 500\text{ cm} ;; the same length
- ;; 5\text{ m} ;; 500 ;; the number belongs to another unit
+ ;; 15\mbox{ cm}^2 ;; 15 ;; the unit left out
+ ;; 15\mbox{ cm}^2 ;; 15\text{ square centimeters} ;; the words
- ;; 15\mbox{ cm}^2 ;; 15 \text{ cm}^3 ;; a volume
+ ;; 60\text{ miles per hour} ;; 60 mph ;; the same speed
- ;; 60\text{ miles per hour} ;; 60\text{ km/h} ;; another speed
+ ;; 1 hour ;; 60 minutes ;; the same time
+ ;; 5\text{ kg} ;; 5000\text{ g} ;; the same mass
+ ;; 5 ;; 5 apples ;; what is counted
- ;; 5\text{ apples} ;; 5\text{ pears} ;; something else is counted
+ ;; 5 ;; 5\text{ square units} ;; no unit at all
- ;; 42 ;; 42 thousand ;; a thousand times
- ;; 42 ;; 42\text{ hundred} ;; a hundred times
- ;; 42 ;; 42 squared ;; the square
- ;; 42 ;; 42 dozen ;; twelve times
- ;; 42 ;; 42\text{ is wrong} ;; taken back
- ;; 42 ;; about 42 ;; not said to be 42
- ;; 42 ;; 42\text{ or more} ;; not said to be 42
""",
    "words": r"""
+ ;; east ;; east ;; the word
+ ;; east ;; East ;; case
+ ;; \text{east} ;; EAST ;; case
+ ;; \text{Evelyn} ;; Evelyn ;; text style
+ ;; Yes ;; \textbf{yes} ;; bold
+ ;; \text{New York} ;; new  york ;; spaces
+ ;; \text{even} ;; \mathrm{even} ;; text style
+ ;; yes ;; yes. ;; a full stop
+ ;; \text{São Paulo} ;; São Paulo ;; letters of other languages
+ ;; \text{Monday, Tuesday} ;; Tuesday, Monday ;; a list
+ ;; ABC ;; abc ;; case
- ;; east ;; seat ;; the same letters
- ;; on ;; no ;; the same letters
- ;; ABC ;; CAB ;; the same letters
- ;; east ;; west ;; another word
- ;; east ;; e \cdot a \cdot s \cdot t ;; a product
- ;; yes ;; no ;; another word
- ;; yes ;; yes or no ;; both
- ;; yes ;; not yes ;; taken back
- ;; east ;; east west ;; both
- ;; even ;; 2 ;; a number
- ;; 2 ;; even ;; a word
- ;; \text{Monday} ;; \text{Monday, Tuesday} ;; both
- ;; none ;; 0 ;; a number
+ ;; xy ;; yx ;; x, y and z are factors
- ;; 42 ;; undefined ;; a word
- ;; 42 ;; forty-three ;; a word
""",
    "multiple choice": r"""
- ;; (C) ;; (c)(d) ;; two letters in lower case
- ;; D ;; D, A ;; two letters
- ;; D ;; [D,E] ;; two letters
- ;; (C) ;; 2C ;; a product
+ ;; e^2 ;; (e)^2 ;; a bracket around e is no choice
+ ;; a+b ;; (a)+b ;; a bracket around a is no choice
+ ;; \textbf{(E)}\ 2\sqrt{3} ;; \sqrt{12} ;; the text of the choice
- ;; \textbf{(E)}\ 2\sqrt{3} ;; (E) 3\sqrt{2} ;; letter and text disagree
+ ;; B ;; B ;; the letter
+ ;; B ;; b ;; case
+ ;; B ;; (B) ;; brackets
+ ;; B ;; B. ;; a full stop
+ ;; B ;; \text{(B)} ;; text style
+ ;; \textbf{(B)} ;; B ;; bold
+ ;; B ;; B. 12 ;; the letter and its text
+ ;; C ;; \text{C. }5 ;; the letter and its text
+ ;; B ;; (B)\ 12 ;; the letter and its text
+ ;; B. 12 ;; 12 ;; the text of the choice
+ ;; B. 12 ;; B ;; the letter of the choice
+ ;; 5 ;; \text{C. }5 ;; the value and its letter
- ;; B ;; C ;; another letter
- ;; B ;; A, B ;; two letters
- ;; B ;; A or B ;; two letters
- ;; A ;; A. 1 B. 2 C. 3 ;; all letters
- ;; A ;; (A)(B)(C) ;; all letters
- ;; A ;; ABCD ;; all letters
- ;; B ;; not B ;; taken back
- ;; B. 12 ;; B. 13 ;; letter and text disagree
- ;; B. 12 ;; C. 12 ;; letter and text disagree
- ;; 5 ;; \text{C. }6 ;; another value
""",
    "polynomials and expressions": r"""
- ;; n! ;; n ;; without the factorial
- ;; n ;; n! ;; the factorial
- ;; a-b ;; b-a ;; the sign
+ ;; a-b-c ;; a-(b+c) ;; the same expression
+ ;; A-B ;; -B+A ;; the order of a sum
+ ;; a b ;; ba ;; a product
+ ;; \sqrt{x^2} ;; |x| ;; for x of either sign
- ;; \frac{x}{|x|} ;; 1 ;; not for negative x
- ;; \arcsin(\sin x) ;; x ;; not for large x
- ;; \arctan(\tan x) ;; x ;; not for large x
- ;; \arccos(\cos x) ;; |x| ;; not for large x
- ;; \sin x ;; \sin(x+\pi) ;; the sign
+ ;; \sin x ;; \sin(x+2\pi) ;; a period
- ;; f(g(x)) ;; g(f(x)) ;; another order
- ;; f(f(x)) ;; f^2x ;; no product
+ ;; f(x+1) ;; f(1+x) ;; the order of a sum
+ ;; P(1+r)^n ;; (r+1)^nP ;; the order of a product
- ;; x_{12} ;; x_1x_2 ;; a product
- ;; x' ;; x ;; another letter
- ;; \vec{a} ;; a ;; a vector
- ;; x ;; x+y-y ;; a letter that need not be there
+ ;; x^2+2x+1 ;; (x+1)^2 ;; multiplied out
+ ;; x^2-y^2 ;; (x-y)(x+y) ;; multiplied out
+ ;; 2x+3 ;; 3+2x ;; the order of a sum
+ ;; 2xy ;; 2yx ;; the order of a product
+ ;; x² ;; x^2 ;; a power of Unicode
+ ;; x^{10} ;; x^10 ;; without braces
+ ;; x^2 ;; x**2 ;; as in Python
+ ;; 3x ;; 3*x ;; a sign for the product
+ ;; \frac{x^2-1}{x-1} ;; x+1 ;; reduced
+ ;; \frac{1}{x} ;; x^{-1} ;; a negative power
+ ;; x\sqrt{x} ;; x^{3/2} ;; a power of a half
+ ;; x^{2/3} ;; \sqrt[3]{x^2} ;; a root
+ ;; \sin^2 x ;; 1-\cos^2 x ;; Pythagoras
+ ;; \sin 2x ;; 2\sin x\cos x ;; the double angle
+ ;; 2^{n+1} ;; 2\cdot 2^n ;; a power law
+ ;; \ln x^2 ;; 2\ln x ;; where both are real
+ ;; a_1+a_2 ;; a_2+a_1 ;; the order of a sum
+ ;; \frac{\pi r}{h+r} ;; \frac{r\pi}{r+h} ;; the order
+ ;; n! ;; n(n-1)! ;; the rule of the factorial
+ ;; |x-2| ;; |2-x| ;; the absolute value
+ ;; \alpha+1 ;; 1+α ;; a letter of Unicode
- ;; x^2+2x+1 ;; (x+1)^3 ;; another power
- ;; x^2+2x+1 ;; x^2+2x+2 ;; another constant
- ;; 2x ;; x^2 ;; another power
- ;; x ;; 2x ;; a multiple
- ;; x ;; y ;; another letter
- ;; x+y ;; a+b ;; other letters
- ;; x+1 ;; X+1 ;; another letter
- ;; a_1 ;; a_2 ;; another index
- ;; x^2 ;; x2 ;; no power
- ;; 2^{n+1} ;; 2^n+1 ;; another expression
- ;; \sqrt{x^2} ;; x ;; not for negative x
- ;; \sin x ;; \cos x ;; another function
- ;; \frac{1}{x+y} ;; \frac1x+\frac1y ;; another expression
- ;; x^2 ;; \int x^2 dx ;; an integral left standing
- ;; x ;; x + 0/0 ;; undefined
- ;; n! ;; n!+10^{-20} ;; near it
""",
    "equations": r"""
- ;; 42 ;; n=42k ;; a multiple
- ;; 42 ;; x=42>41 ;; an inequality
- ;; 2 ;; x=2=x ;; the name again
- ;; y=x ;; x=x ;; always true
+ ;; y=x ;; x=y ;; the sides exchanged
+ ;; x=0 ;; x^2=0 ;; the same solution
+ ;; xy=1 ;; y=\frac1x ;; the same curve
+ ;; x+y=3, x-y=1 ;; x-y=1, x+y=3 ;; the order of a list
+ ;; 42 ;; x=42 ;; the value of x
+ ;; 42 ;; 42=x ;; the value of x
+ ;; x=42 ;; 42 ;; the value of x
+ ;; 42 ;; f(2)=42 ;; the value of f
+ ;; 42 ;; \text{Area} = 42 ;; the value of a name
+ ;; 42 ;; Area = 42 \text{ cm}^2 ;; the value of a name
+ ;; 42 ;; |AB| = 42 ;; the value of a length
+ ;; 42 ;; \angle ABC = 42^\circ ;; the value of an angle
+ ;; 42 ;; x = 6\cdot 7 = 42 ;; every step is right
+ ;; 42 ;; 6\cdot 7 = 42 ;; both sides are right
+ ;; 42 ;; x\approx 42 ;; the value of x
+ ;; \frac13 ;; \frac13\approx 0.333 ;; the value, and then rounded
+ ;; y=2x+1 ;; 2x+1 ;; what y is
+ ;; y=2x+1 ;; y-2x=1 ;; the same line
+ ;; y=\frac{x}{2} ;; 2y=x ;; the same line
+ ;; x^2+y^2=1 ;; y^2+x^2-1=0 ;; the same circle
+ ;; f(x)=2x ;; 2x ;; what f is
+ ;; \frac{a}{b}=\frac23 ;; 2/3 ;; what the quotient is
- ;; 42 ;; 41=42 ;; not true
- ;; 42 ;; 42=41 ;; not true
- ;; 42 ;; x = 41 = 42 ;; not true
- ;; 42 ;; 2x=42 ;; x is 21
- ;; 42 ;; x^2=42 ;; x is not 42
- ;; 42 ;; x+1=42 ;; x is 41
- ;; 42 ;; x=43 ;; another value
- ;; 42 ;; \text{Area} = 41 ;; another value
- ;; 42 ;; 42\approx 43 ;; not the same
- ;; 43 ;; 42\approx 43 ;; not the same
- ;; \frac13 ;; \frac13\approx 0.4 ;; wrongly rounded
- ;; 42 ;; x\ne 42 ;; the contrary
- ;; 42 ;; x>41 ;; an inequality
- ;; 42 ;; x\equiv 42 \pmod{5} ;; a congruence
- ;; x=42 ;; y=42 ;; another letter
- ;; x=42 ;; x=43 ;; another value
- ;; y=2x+1 ;; y=2x+2 ;; another line
- ;; x^2+y^2=1 ;; x^2+y^2 ;; no equation
- ;; x^2+y^2=1 ;; 0=0 ;; always true
- ;; x^2+y^2=1 ;; x=x ;; always true
- ;; f(x)=2x ;; g(x)=2x ;; another function
- ;; 42 ;; 42 \text{ if } x = 1, 43 \text{ else} ;; two answers
- ;; 42 ;; 42 if x = 1, 43 else ;; two answers
""",
    "intervals and inequalities": r"""
+ ;; (-1,1) ;; |x|<1 ;; the same set
+ ;; [0,\infty) ;; x \ge 0 ;; the same set
+ ;; (-\infty,3] ;; x \leq 3 ;; the same set
+ ;; [1,2) ;; 1 \le x < 2 ;; the same set
+ ;; [1,2) ;; 2 > x \ge 1 ;; read from the right
+ ;; x>3 ;; (3,\infty) ;; the same set
+ ;; x>3 ;; 3<x ;; read from the right
+ ;; x>3 ;; 2x>6 ;; times two
+ ;; x>3 ;; -x<-3 ;; times minus one
+ ;; x \ge 5 ;; x >= 5 ;; plain text
+ ;; x\in(0,1) ;; (0,1) ;; the same set
+ ;; (0,\infty) ;; \{x\mid x>0\} ;; the same set
+ ;; (1,2) ;; 1<x<2 ;; an open interval is meant
+ ;; (-\infty,0)\cup(1,\infty) ;; x<0 \text{ or } x>1 ;; the same set
+ ;; (-\infty,0)\cup(1,\infty) ;; (1,\infty)\cup(-\infty,0) ;; the order of a union
+ ;; [0,2] ;; [0,1]\cup[1,2] ;; the same set
+ ;; \mathbb{R}\setminus\{0\} ;; x\ne 0 ;; the same set
+ ;; (-\infty,2)\cup(2,\infty) ;; x\neq 2 ;; the same set
+ ;; (-\infty,\infty) ;; \mathbb{R} ;; all real numbers
+ ;; [0,\sqrt{8}] ;; [0,2\sqrt2] ;; the same ends
- ;; [0,\infty) ;; x > 0 ;; without 0
- ;; [0,\infty) ;; (0,\infty) ;; without 0
- ;; (-\infty,3] ;; (-\infty,3) ;; without 3
- ;; [1,2) ;; (1,2] ;; other ends
- ;; [1,2) ;; [1,3) ;; another end
- ;; (1,2) ;; [1,2] ;; with the ends
- ;; (1,2) ;; (2,1) ;; another order
- ;; (2,1) ;; 1<x<2 ;; not in the order of an interval
- ;; x>3 ;; y>3 ;; another letter
- ;; x>3 ;; x<3 ;; the other side
- ;; x>3 ;; x\ge 3 ;; with 3
- ;; x>3 ;; -x>-3 ;; the other side
- ;; x>3 ;; 3 ;; a number
- ;; 3 ;; x>3 ;; an inequality
- ;; [0,2] ;; [0,1)\cup(1,2] ;; without 1
- ;; (-\infty,0)\cup(1,\infty) ;; 1<x<0 ;; nothing
- ;; [0,\infty) ;; \mathbb{R} ;; more
- ;; \emptyset ;; 0 ;; a number
+ ;; \emptyset ;; \{\} ;; nothing in it
- ;; \emptyset ;; \{0\} ;; zero is in it
- ;; (5, 3) ;; (2, 1) \cup (7, 6) ;; neither has a point, and a pair is no interval
- ;; [5, 3) ;; \emptyset ;; no interval
- ;; (1, 2) \cup (5, 3) ;; (1, 2) ;; the second is no interval
""",
    "tuples, sets, lists, matrices": r"""
+ ;; \{1,4,9\} ;; \{1^2,2^2,3^2\} ;; item by item
+ ;; 4,9,25 ;; 2^2,3^2,5^2 ;; powers in a row are no tower
- ;; 4,9,25 ;; 2^2,3^2,4^2 ;; another item
- ;; \{1,4,9\} ;; \{\{1,4,9\}\} ;; a set in a set
- ;; (2,-3,5) ;; ((2,-3),5) ;; a pair in a pair
- ;; -1,3 ;; 1\pm 3 ;; other signs
+ ;; -1,3 ;; 1\pm 2 ;; both signs
- ;; 3\pm\sqrt{2} ;; \pm 3\pm\sqrt2 ;; four numbers
- ;; 42 ;; 42, 42 ;; two answers
- ;; 42 ;; 42\\43 ;; two answers
- ;; 42 ;; 42\quad 43 ;; two answers
- ;; 42 ;; x=42, x=43 ;; two answers
- ;; 42 ;; [41,43] ;; an interval
- ;; \text{3 or 4} ;; 3 ;; one is missing
- ;; (a,b) ;; (b,a) ;; another order
+ ;; \{a,b\} ;; \{b,a\} ;; a set has no order
+ ;; x=1 \text{ or } x=2 ;; x \in \{1,2\} ;; the same set
+ ;; (1,2) ;; (1, 2) ;; spaces
+ ;; (1,2) ;; \left( 1, 2 \right) ;; large brackets
+ ;; (1,2) ;; (\frac{2}{2}, 2.0) ;; item by item
+ ;; (1,2) ;; 1,2 ;; brackets left out
+ ;; (1,2) ;; x=1,y=2 ;; names of the items
+ ;; (1,2) ;; (x,y)=(1,2) ;; names of the items
+ ;; (3, \frac{\pi}{2}) ;; (3, \pi/2) ;; item by item
- ;; (1,2) ;; \{1,2\} ;; a set
- ;; (1,2) ;; 2,1 ;; another order
- ;; (1,2) ;; (1,2,3) ;; one too many
- ;; (1,2) ;; (1,3) ;; another item
- ;; (1,2) ;; 1 ;; one item
- ;; 3 ;; (1,2) ;; a pair
- ;; \{1,2\} ;; (1,2) ;; a pair
+ ;; \{1,2,3\} ;; \{3,2,1\} ;; a set has no order
+ ;; \{1,2\} ;; 1,2 ;; braces left out
+ ;; \{1,2\} ;; 2 \text{ and } 1 ;; braces left out
+ ;; \{1,1,2\} ;; \{1,2\} ;; a set has each item once
+ ;; \{5\} ;; 5 ;; the one solution
- ;; 5 ;; \{5\} ;; a set is no number
- ;; \{1,2\} ;; \{1,2,3\} ;; one too many
- ;; \{1,2,3\} ;; \{1,2\} ;; one too few
- ;; \{1,2\} ;; [1,2] ;; an interval
+ ;; 1,2 ;; 2,1 ;; solutions in any order
+ ;; 1,2 ;; 1 \text{ or } 2 ;; solutions
+ ;; 1,2 ;; x=1, x=2 ;; solutions
+ ;; 1,2 ;; x=1,2 ;; solutions
+ ;; 2,-2 ;; \pm 2 ;; both signs
+ ;; 1\pm\sqrt{2} ;; 1+\sqrt2, 1-\sqrt2 ;; both signs
+ ;; \{1\pm\sqrt{5},-2\} ;; \{-2, 1+\sqrt5, 1-\sqrt5\} ;; both signs
- ;; 2 ;; \pm 2 ;; two answers
- ;; \pm 2 ;; 2 ;; one is missing
- ;; 42 ;; 42 \pm 0 ;; two answers
- ;; 42 ;; 42,43 ;; two answers
- ;; 42 ;; 42 or 43 ;; two answers
- ;; 42 ;; 42\text{ or }43 ;; two answers
- ;; 42 ;; 41 \text{ and } 42 ;; two answers
- ;; 42 ;; \{41,42\} ;; two answers
- ;; 42 ;; 1,2,3,4,5,42 ;; six answers
- ;; 1,2 ;; 1 ;; one is missing
- ;; 1,2 ;; 1,2,3 ;; one too many
- ;; 1,2 ;; 1,1,2 ;; one twice
- ;; x=1,y=2 ;; 2,1 ;; exchanged
+ ;; x=1,y=2 ;; y=2,x=1 ;; each has its name
+ ;; (1,2),(3,4) ;; (3,4),(1,2) ;; solutions in any order
- ;; (1,2),(3,4) ;; (2,1),(3,4) ;; one is exchanged
+ ;; \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ;; \begin{bmatrix} 1&2\\3&4\end{bmatrix} ;; other brackets
+ ;; \begin{pmatrix} \frac12 \\ 2 \end{pmatrix} ;; \begin{pmatrix} 0.5 \\ 2 \end{pmatrix} ;; item by item
- ;; \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ;; \begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix} ;; turned over
- ;; \begin{pmatrix} 1 \\ 2 \end{pmatrix} ;; \begin{pmatrix} 1 & 2 \end{pmatrix} ;; a row
- ;; \begin{pmatrix} 1 \\ 2 \end{pmatrix} ;; (1,2) ;; a pair
""",
    "bases, ratios, times": r"""
+ ;; 1011_2 ;; 1011_{2} ;; with braces
+ ;; 1011_2 ;; 1011_{\text{two}} ;; the base as a word
+ ;; 42 ;; 42_{10} ;; the usual base
- ;; 1011_2 ;; 11 ;; asked for in base two
- ;; 11 ;; 1011_2 ;; asked for in base ten
- ;; 42 ;; 42_{7} ;; thirty
- ;; 42_7 ;; 42 ;; not in base seven
- ;; 42_7 ;; 42_8 ;; another base
- ;; 1011_2 ;; 1101_2 ;; another number
+ ;; 3:4 ;; 3 : 4 ;; spaces
+ ;; 3:4 ;; 6:8 ;; the same ratio
+ ;; 3:4 ;; 3/4 ;; the quotient
+ ;; 1:2:3 ;; 2:4:6 ;; the same ratio
- ;; 3:4 ;; 4:3 ;; turned round
- ;; 3:4 ;; 3:5 ;; another ratio
- ;; 3:4 ;; 34 ;; digits alone
+ ;; 12:30 ;; 12:30 \text{ p.m.} ;; half of the day left out
+ ;; 3:30\text{ p.m.} ;; 3:30 PM ;; another spelling
- ;; 3:30\text{ p.m.} ;; 3:30\text{ a.m.} ;; half a day apart
- ;; 12:30 ;; 12:31 ;; another minute
- ;; 3:30 ;; 1:10 ;; a time is no ratio
""",
}


def rows() -> list[tuple[str, str, str, bool, str]]:
    """Kind, gold answer, answer, verdict and reason of each row."""
    found = []
    for kind, text in TABLE.items():
        for line in text.strip().splitlines():
            sign, gold, answer, why = line.split(" ;; ")
            found.append((kind, gold, answer, {"+": True, "-": False}[sign], why))
    return found
